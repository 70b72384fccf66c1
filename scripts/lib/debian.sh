# What the scripts share that make images of Debian's packages. Source it after common.sh; it sets nothing but this.

release=bookworm
# The date of whatever is made for an image.
epoch=1767225600

# sources: one-line entries of this machine's package lists that Debian published for the release.
sources() {
    apt-get indextargets --format '$(ORIGIN) $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        awk -v release="$release" '$1 == "Debian" && $4 == "main" && ($3 == release || $3 ~ "^" release "(-security|-updates|/updates)$") {
            print "deb", $2, $3, $4 }' | sort -u
}

# The machine's way out (proxies, certificates), for mmdebstrap's apt.
apt_options() {
    apt-config dump --format '%f "%v";%n' | grep -E '^Acquire::https?(::[^ ]*)?::(Proxy|CAInfo|CAPath|Verify-Peer|Verify-Host|Timeout)(::[^ ]*)? ' || true
}

# static_init [INIT]: the guest's first process, built if it is not given; prints its path.
static_init() { static_program --init "${1:-}"; }

# static_program OPTION [PROGRAM]: a program of guests, built with this option of scripts/build if it is not given.
static_program() {
    local program=${2:-}
    [ -n "$program" ] || program=$("$root/scripts/build" "$1")
    [ -f "$program" ] || die "$program does not exist"
    ! readelf -lW "$program" 2>/dev/null | grep -q INTERP || die "$program is dynamically linked; what runs in a guest must be static"
    echo "$program"
}

# make_image TREE IMAGE SIZE LABEL UUID: an ext4 of SIZE with the files of TREE; blocks of zeros are holes.
#
# Nothing is left for the guest's kernel to initialize, so a sandbox writes only what its programs write: inode tables are
# complete, the journal is short, no blocks are set aside for root. `resize` bounds what is reserved for growing: 1 TiB.
make_image() {
    local tree=$1 image=$2 size=$3 label=$4 uuid=$5
    rm -f "$image.new"
    truncate -s "$size" "$image.new"
    E2FSPROGS_FAKE_TIME=$epoch mke2fs -q -F -t ext4 -b 4096 -m 0 -L "$label" -U "$uuid" -J "size=${journal:-32}" \
        -O 64bit,metadata_csum,extent,flex_bg,dir_index,resize_inode,^orphan_file \
        -E "lazy_itable_init=0,lazy_journal_init=0,nodiscard,hash_seed=$uuid,resize=268435456,root_owner=0:0" \
        -d "$tree" "$image.new" >&2
    e2fsck -fn "$image.new" >"$image.fsck" 2>&1 || { cat "$image.fsck" >&2; die "the new image is damaged"; }
    # Blocks of zeros, the inode tables' and the journal's above all, become holes.
    cp --sparse=always "$image.new" "$image"
    rm -f "$image.new" "$image.fsck"
}
