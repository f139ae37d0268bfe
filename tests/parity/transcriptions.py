"""Three methods written out in plain Python floats, straight from their papers, and the numbers they give.

`python tests/parity/transcriptions.py` writes `pinned.json` beside this file. Nothing here knows the library:
no tensors, no shared helpers of ours, indices and sums by hand.
"""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path

CLIENTS = 4
DIMENSION = 3
COHORTS = [[0, 2], [3, 1], [2, 3], [0, 1], [1, 2], [3, 0]]  # one per round
SIZES = [1, 2, 3, 4]
CURVATURE = [[1.0, 0.5, 0.2], [0.3, 1.2, 0.7], [0.9, 0.4, 1.1], [0.6, 0.8, 0.3]]
CENTRE = [[1.0, -2.0, 0.5], [-1.5, 0.5, 2.0], [0.3, 1.7, -1.0], [-0.4, -0.9, 1.3]]
TWIST = [0.10, -0.05, 0.20, 0.15]
START = [0.2, -0.1, 0.4]
STEPS = 3
LR = 0.07


def gradient(k, w):
    """Of sum_i c_ki (w_i - m_ki)^2 / 2 + w_i^4 / 40, plus twist_k w_0 w_1 w_2: not quadratic, not symmetric."""
    g = [CURVATURE[k][i] * (w[i] - CENTRE[k][i]) + w[i] ** 3 / 10 for i in range(DIMENSION)]
    g[0] += TWIST[k] * w[1] * w[2]
    g[1] += TWIST[k] * w[0] * w[2]
    g[2] += TWIST[k] * w[0] * w[1]
    return g


def length(v):
    return sqrt(sum(x * x for x in v))


def along(rho, v):
    n = length(v)
    return [rho * x / n if n > 0 else 0.0 for x in v]


def fedgloss(rho=0.3, rho_l=0.2, beta=4.0):
    """Algorithm 1 of the paper with SAM clients (lines 12 to 14)."""
    w = list(START)
    sigma = [0.0] * DIMENSION
    sigma_k = [[0.0] * DIMENSION for _ in range(CLIENTS)]
    delta = [0.0] * DIMENSION
    rounds = []
    for cohort in COHORTS:
        eps = along(rho, delta)  # line 4
        w_tilde = [w[i] + eps[i] for i in range(DIMENSION)]  # line 5
        ends = {}
        for k in cohort:  # line 7
            w_k = list(w_tilde)  # line 8
            for _ in range(STEPS):
                g = gradient(k, w_k)  # line 12
                e = along(rho_l, g)  # line 13
                g = gradient(k, [w_k[i] + e[i] for i in range(DIMENSION)])  # line 14
                w_k = [
                    w_k[i] - LR * (g[i] - sigma_k[k][i] + (w_k[i] - w_tilde[i]) / beta) for i in range(DIMENSION)
                ]  # line 15
            sigma_k[k] = [sigma_k[k][i] - (w_k[i] - w_tilde[i]) / beta for i in range(DIMENSION)]  # line 19
            ends[k] = w_k
        sigma = [
            sigma[i] - sum(ends[k][i] - w_tilde[i] for k in cohort) / (beta * CLIENTS) for i in range(DIMENSION)
        ]  # line 22
        samples = sum(SIZES[k] for k in cohort)
        delta = [
            sum(SIZES[k] / samples * (w_tilde[i] - ends[k][i]) for k in cohort) for i in range(DIMENSION)
        ]  # line 23
        w = [w[i] - delta[i] - beta * sigma[i] for i in range(DIMENSION)]  # line 24
        rounds.append({"w": w, "sigma": sigma, "delta": delta, "sigma_k": [list(s) for s in sigma_k]})
    return rounds


def scaffold():
    """SCAFFOLD, option II, uniform weights, server rate 1."""
    w = list(START)
    c = [0.0] * DIMENSION
    c_k = [[0.0] * DIMENSION for _ in range(CLIENTS)]
    rounds = []
    for cohort in COHORTS:
        moves, control_moves = [], []
        for k in cohort:
            y = list(w)
            for _ in range(STEPS):
                g = gradient(k, y)
                y = [y[i] - LR * (g[i] - c_k[k][i] + c[i]) for i in range(DIMENSION)]
            plus = [c_k[k][i] - c[i] + (w[i] - y[i]) / (STEPS * LR) for i in range(DIMENSION)]
            moves.append([y[i] - w[i] for i in range(DIMENSION)])
            control_moves.append([plus[i] - c_k[k][i] for i in range(DIMENSION)])
            c_k[k] = plus
        w = [w[i] + sum(m[i] for m in moves) / len(cohort) for i in range(DIMENSION)]
        c = [c[i] + sum(m[i] for m in control_moves) / CLIENTS for i in range(DIMENSION)]
        rounds.append({"w": w, "c": c, "c_k": [list(x) for x in c_k]})
    return rounds


def fedsmoo(r=0.25, beta=4.0):
    """FedSMOO: the dual of the model as FedDyn's, the dual of the perturbation beside it."""
    w = list(START)
    lam = [0.0] * DIMENSION
    lam_k = [[0.0] * DIMENSION for _ in range(CLIENTS)]
    mu_k = [[0.0] * DIMENSION for _ in range(CLIENTS)]
    s = [0.0] * DIMENSION
    rounds = []
    for cohort in COHORTS:
        ends, sent = {}, {}
        for k in cohort:
            y = list(w)
            s_k = [0.0] * DIMENSION
            for _ in range(STEPS):
                g = gradient(k, y)
                s_k = along(r, [g[i] - mu_k[k][i] - s[i] for i in range(DIMENSION)])
                mu_k[k] = [mu_k[k][i] + s_k[i] - s[i] for i in range(DIMENSION)]
                g = gradient(k, [y[i] + s_k[i] for i in range(DIMENSION)])
                y = [y[i] - LR * (g[i] - lam_k[k][i] + (y[i] - w[i]) / beta) for i in range(DIMENSION)]
            lam_k[k] = [lam_k[k][i] - (y[i] - w[i]) / beta for i in range(DIMENSION)]
            ends[k] = y
            sent[k] = [mu_k[k][i] - s_k[i] for i in range(DIMENSION)]
        lam = [lam[i] - sum(ends[k][i] - w[i] for k in cohort) / (beta * CLIENTS) for i in range(DIMENSION)]
        s = along(r, [sum(sent[k][i] for k in cohort) / len(cohort) for i in range(DIMENSION)])
        w = [sum(ends[k][i] for k in cohort) / len(cohort) - beta * lam[i] for i in range(DIMENSION)]
        rounds.append(
            {"w": w, "s": s, "lambda": lam, "lambda_k": [list(x) for x in lam_k], "mu_k": [list(x) for x in mu_k]}
        )
    return rounds


def all_numbers():
    return {"fedgloss": fedgloss(), "scaffold": scaffold(), "fedsmoo": fedsmoo()}


if __name__ == "__main__":
    Path(__file__).with_name("pinned.json").write_text(json.dumps(all_numbers(), indent=1) + "\n")
