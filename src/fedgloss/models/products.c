/* Matrix products of many small factors, each sum taken in order: one chain of fused multiply-adds an output. */

#include <stdint.h>

#if defined(__AVX512F__)
enum { LANES = 16, ROWS = 6 }; /* 24 of 32 registers hold sums */
#else
enum { LANES = 8, ROWS = 3 }; /* 12 of 16 */
#endif
enum { VECTORS = 4, COLUMNS = VECTORS * LANES };

typedef float vector __attribute__((vector_size(4 * LANES)));
typedef float unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* `rows` is a constant wherever this is called, so that the sums stay in registers. Like MKL it adds what it found to
   zero, so that no zero is negative. */
static inline __attribute__((always_inline)) void block(int rows, const float *one, int64_t row, int64_t column,
                                                        const float *other, float *to, int64_t inner, int64_t wide) {
    vector sums[ROWS][VECTORS] = {0};
    for (int64_t k = 0; k < inner; k++) {
        vector factors[VECTORS];
        for (int j = 0; j < VECTORS; j++) factors[j] = *(const unaligned *)(other + k * wide + j * LANES);
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < VECTORS; j++) sums[i][j] += one[i * row + k * column] * factors[j];
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < VECTORS; j++) *(unaligned *)(to + i * wide + j * LANES) = sums[i][j] + 0.0f;
}

/* to[c] = one[c] @ other[c] for c < count. `one` lies as its strides say; `other` in rows, or in columns, and then
   `space` takes its transpose; `wide` is a multiple of COLUMNS. */
void products(const float *one, const float *other, float *to, float *space, int64_t count, int64_t tall,
              int64_t inner, int64_t wide, int64_t next_one, int64_t row, int64_t column, int64_t next_other) {
    for (int64_t c = 0; c < count; c++, one += next_one, other += next_other, to += tall * wide) {
        const float *factor = other;
        if (space) {
            for (int64_t j = 0; j < wide; j++)
                for (int64_t k = 0; k < inner; k++) space[k * wide + j] = other[j * inner + k];
            factor = space;
        }
        for (int64_t j = 0; j < wide; j += COLUMNS) {
            int64_t i = 0;
            for (; i + ROWS <= tall; i += ROWS)
                block(ROWS, one + i * row, row, column, factor + j, to + i * wide + j, inner, wide);
            for (; i + 2 <= tall; i += 2)
                block(2, one + i * row, row, column, factor + j, to + i * wide + j, inner, wide);
            for (; i < tall; i++)
                block(1, one + i * row, row, column, factor + j, to + i * wide + j, inner, wide);
        }
    }
}
