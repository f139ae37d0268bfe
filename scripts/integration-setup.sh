#!/usr/bin/env bash
# Programs the integration tests drive. Installs what is missing with apt where that is allowed; otherwise names it,
# one line a part, and ends with 1. Does nothing, quickly, when all is there.
set -euo pipefail

# a part a line: what it is for | how to see that it is there | Debian packages
parts=(
  "a browser, for the report|command -v chromium|chromium"
  "a font, for the report|test -e /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf|fonts-dejavu-core"
  "a reverse proxy, for the federation|PATH=$PATH:/usr/sbin command -v nginx|nginx-light"
  "process listings, for the federation|command -v ps|procps"
)

missing=() packages=()
for part in "${parts[@]}"; do
  IFS='|' read -r purpose check needed <<<"$part"
  if ! eval "$check" >/dev/null 2>&1; then
    missing+=("$purpose: apt-get install $needed")
    packages+=($needed)
  fi
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing ${packages[*]} ..."
  export DEBIAN_FRONTEND=noninteractive
  install=(apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends "${packages[@]}")
  "${install[@]}" >/dev/null 2>&1 || { apt-get -qq update && "${install[@]}" >/dev/null; } && exit 0
fi
printf 'missing: %s\n' "${missing[@]}" >&2
exit 1
