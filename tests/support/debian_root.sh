# debian_root.sh ARCHIVE FOLDER: a small Debian, with a shell, coreutils and Python, out of the packages of the base template.
set -euo pipefail
archive=$1 folder=$2
packages=(
    base-files bash coreutils dash findutils grep gzip libacl1 libattr1 libbz2-1.0 libc6 libcrypt1 libexpat1 libffi8 libgmp10
    liblzma5 libpcre2-8-0 libpython3.11-minimal libpython3.11-stdlib libselinux1 libssl3 libtinfo6 libuuid1 python3-minimal
    python3.11-minimal sed tar zlib1g
)
mkdir -p "$folder"
lists=$(mktemp -d)
trap 'rm -rf "$lists"' EXIT
tar --zstd -xf "$archive" -C "$lists" --wildcards './var/lib/dpkg/info/*.list'
{
    for name in "${packages[@]}"; do cat "$lists/var/lib/dpkg/info/$name.list" "$lists/var/lib/dpkg/info/$name:amd64.list" 2>/dev/null || true; done
    printf '%s\n' /bin /sbin /lib /lib64 /etc/passwd /etc/group /etc/shadow /etc/ld.so.cache /root /tmp /var/tmp
} | sed -E 's#^/(bin|sbin|lib|lib64)/#/usr/\1/#; s#^/#./#; /^\.\/\.$/d' | sort -u >"$lists/wanted"
# What a package lists and the template leaves out, such as its manual, is not there.
tar --zstd -xf "$archive" -C "$folder" --no-recursion --same-owner -p -T "$lists/wanted" 2>"$lists/missing" || true
mkdir -p "$folder"/{dev,proc,sys,run}
chroot "$folder" /bin/sh -c 'python3 -c "import hashlib, json, os" && ls / | grep -q usr' ||
    { cat "$lists/missing" >&2; echo "the small Debian does not run" >&2; exit 1; }
