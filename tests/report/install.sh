#!/usr/bin/env bash
# Installs Debian's Chromium for tests/report/test_browser.py, where there is no browser yet. Needs root.
set -euo pipefail

for program in chromium chromium-browser google-chrome; do
    if command -v "$program" >/dev/null; then exit 0; fi
done
command -v apt-get >/dev/null || { echo "install.sh: neither a Chromium nor apt-get here" >&2 && exit 1; }
[[ $(id -u) == 0 ]] || { echo "install.sh: no Chromium here, and only root can install it" >&2 && exit 1; }
apt-get --quiet=2 update
DEBIAN_FRONTEND=noninteractive apt-get --quiet=2 --yes --no-install-recommends install chromium
