#!/usr/bin/env bash
# Install Debian's Chromium, where this machine has none.
#
#   install_chromium.sh
#
# Some 100 MB to download. Exit status 3: it cannot be installed here, for want of apt-get or of root's rights.
set -euo pipefail

for name in chromium chromium-browser google-chrome-stable google-chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    echo "Chromium is installed from Debian packages by root; found neither it nor both apt-get and root" >&2
    exit 3
fi
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get --quiet=2 update && apt-get --quiet=2 install --yes --no-install-recommends chromium >/dev/null; }; then
    echo "Chromium could not be installed from Debian packages: see apt-get's words above" >&2
    exit 3
fi
