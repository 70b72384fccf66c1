# debian_root.sh SOURCE FOLDER: a small Debian, with a shell, coreutils and Python, out of the packages of SOURCE, which is the
# archive of a base template's root, or the root of a machine with Debian 12.
set -euo pipefail
source=$1 folder=$2
packages=(
    base-files bash coreutils dash findutils grep gzip libacl1 libattr1 libbz2-1.0 libc6 libcrypt1 libexpat1 libffi8 libgmp10
    liblzma5 libpcre2-8-0 libpython3.11-minimal libpython3.11-stdlib libselinux1 libssl3 libtinfo6 libuuid1 python3-minimal
    python3.11-minimal sed tar zlib1g
)
mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
lists=$source/var/lib/dpkg/info files=(/bin /sbin /lib /lib64 /root /tmp /var/tmp)
if [[ -f $source ]]; then
    tar --zstd -xf "$source" -C "$work" --wildcards './var/lib/dpkg/info/*.list'
    lists=$work/var/lib/dpkg/info files+=(/etc/passwd /etc/group /etc/shadow /etc/ld.so.cache)
fi
{
    for name in "${packages[@]}"; do cat "$lists/$name.list" "$lists/$name:amd64.list" 2>/dev/null || true; done
    printf '%s\n' "${files[@]}"
} | sed -E 's#^/(bin|sbin|lib|lib64)/#/usr/\1/#; s#^/#./#; /^\.\/\.$/d' | sort -u >"$work/wanted"
# What a package lists and the source leaves out, such as its manual, is not there.
if [[ -f $source ]]; then
    tar --zstd -xf "$source" -C "$folder" --no-recursion --same-owner -p -T "$work/wanted" 2>"$work/missing" || true
else
    attributes=(--xattrs '--xattrs-include=*')
    { tar "${attributes[@]}" -C "$source" --no-recursion -T "$work/wanted" -c 2>"$work/missing" || true; } |
        tar "${attributes[@]}" -C "$folder" --same-owner -px
    # A machine's accounts and passwords are its own.
    for name in passwd group; do cp "$source/usr/share/base-passwd/$name.master" "$folder/etc/$name"; done
fi
mkdir -p "$folder"/{dev,proc,sys,run}
chroot "$folder" /bin/sh -c 'python3 -c "import hashlib, json, os" && ls / | grep -q usr' ||
    { cat "$work/missing" >&2; echo "the small Debian does not run" >&2; exit 1; }
