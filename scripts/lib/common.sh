# Shared by every script here. Source it; it sets no option of the shell and changes no folder.

# Where things that outlive a checkout are kept: the guest kernel, the base template, the nested host.
: "${SANDPIPER_CACHE:=/var/cache/sandpiper}"
export SANDPIPER_CACHE

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

# Progress, for a person; results go to standard output.
say() { printf '\033[2m[%s]\033[0m %s\n' "$(date +%H:%M:%S)" "$*" >&2; }

die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# need_packages NAME...: installs the Debian packages that are missing.
need_packages() {
    local name missing=()
    for name in "$@"; do
        dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
    done
    [ ${#missing[@]} -eq 0 ] && return
    [ "$(id -u)" = 0 ] || die "these Debian packages are missing: ${missing[*]}. Run this as root, or: apt-get install ${missing[*]}"
    say "installing ${missing[*]}"
    [ -n "$(find /var/lib/apt/lists -maxdepth 1 -name '*_Packages*' -print -quit)" ] || packages update
    packages install "${missing[@]}" || { packages update && packages install "${missing[@]}"; } ||
        die "could not install: ${missing[*]}"
}

# packages update | install NAME...: apt-get; scripts that run side by side take turns.
packages() {
    DEBIAN_FRONTEND=noninteractive flock --close /run/sandpiper-packages.lock \
        apt-get "$1" -y -qq --no-install-recommends "${@:2}" >/dev/null
}

# need_rust: puts cargo on the PATH, with the toolchain of rust-toolchain.toml; with the default one if that cannot be installed.
need_rust() {
    # rustup puts it there; a shell that was open before, or a service, has another PATH.
    command -v cargo >/dev/null || PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
    command -v cargo >/dev/null || die "there is no cargo. Install Rust, for example with rustup, then run this again"
    export PATH
    (cd "$root" && cargo --version >/dev/null 2>&1) && return
    RUSTUP_TOOLCHAIN=$(rustup default | cut -d ' ' -f 1)
    export RUSTUP_TOOLCHAIN
    say "the toolchain of rust-toolchain.toml cannot be installed: using $RUSTUP_TOOLCHAIN"
}

# need_postgresql: installs PostgreSQL's programs if they are missing, and no server for the machine.
need_postgresql() {
    # The package would make and start one, unless told not to.
    local settings=/etc/postgresql-common/createcluster.conf
    if [ "$(id -u)" = 0 ] && [ ! -e "$settings" ]; then
        mkdir -p "$(dirname "$settings")"
        echo "create_main_cluster = false" >"$settings"
    fi
    need_packages postgresql
}
