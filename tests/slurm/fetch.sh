#!/usr/bin/env bash
# Unpack SLURM and MUNGE from Debian packages into a folder, without root and without a trace elsewhere.
#
#   fetch.sh FOLDER
#
# 3.4 MB to download, 14 MB unpacked. Exit status 3: this machine has no Debian packages.
set -euo pipefail

folder=${1:?usage: fetch.sh FOLDER}
packages=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libmunge2 libhwloc15 liblua5.1-0)

if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "SLURM is unpacked from Debian packages, and this machine has neither apt-get nor dpkg-deb" >&2
    exit 3
fi

mkdir -p "$folder/packages/lists/partial" "$folder/packages/cache/archives/partial"
cd "$folder/packages"
# Lists and cache of our own: those of the system are root's, and may be empty in a container.
apt=(apt-get --quiet=2 -o "Dir::State::Lists=$PWD/lists" -o "Dir::Cache=$PWD/cache" -o Debug::NoLocking=1)
[ "$(id -u)" = 0 ] && apt+=(-o APT::Sandbox::User=root) # its own user cannot write here
"${apt[@]}" update
"${apt[@]}" download "${packages[@]}"
for file in *.deb; do
    dpkg-deb --extract "$file" ..
done
cd ..
rm -r packages
[ -x usr/bin/sbatch ] || { echo "fetch.sh: the packages hold no sbatch" >&2; exit 1; }
