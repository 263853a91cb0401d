#!/usr/bin/env bash
# Packages from the tree:
#
#   tools/package.sh tarball [FOLDER]    phalanx-VERSION-x86_64-linux.tar.gz: dp, pinn, phalanx, libdeepmd_c.so, man pages, completions
#   tools/package.sh deb [FOLDER]        phalanx_VERSION_amd64.deb with the same
#
# FOLDER (default: .) gets the package. Where cargo-zigbuild and zig are installed (pip install cargo-zigbuild ziglang), the programs run with
# glibc 2.17 or newer, which is checked; else with what they were linked to on this machine. The glibc that they need is read from
# them and printed. MPI, CUDA and NCCL are found at run time.
set -euo pipefail
kind=${1:?"tarball or deb"} folder=$(realpath "${2:-.}")
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
target=${CARGO_TARGET_DIR:-target}
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

oldest=""
if command -v cargo-zigbuild >/dev/null && python3 -c 'import ziglang' 2>/dev/null; then
    oldest=2.17
    cargo zigbuild --release --target "x86_64-unknown-linux-gnu.$oldest" -p phalanx -p phalanx-capi
    built=$target/x86_64-unknown-linux-gnu/release
else
    cargo build --release -p phalanx -p phalanx-capi
    built=$target/release
fi

# The newest glibc whose symbols a program cannot do without. Weak ones it can: it asks whether they are there.
needed_glibc() {
    readelf --dyn-syms --wide "$@" | awk '$7 == "UND" && $5 == "GLOBAL"' | grep -o '@GLIBC_[0-9.]*' | cut -d_ -f2 | sort -uV | tail -1
}
command -v readelf >/dev/null || { echo "readelf (binutils) is needed, to find out which glibc the programs need" >&2; exit 1; }
glibc=$(needed_glibc "$built/dp" "$built/pinn" "$built/phalanx" "$built/libdeepmd_c.so")
echo "needs glibc $glibc or newer"
if [ -n "$oldest" ] && [ "$(printf '%s\n' "$oldest" "$glibc" | sort -V | tail -1)" != "$oldest" ]; then
    echo "the programs were built for glibc $oldest and need $glibc" >&2
    exit 1
fi
cargo run --release --example man_and_completions -- "$stage/shell"

# What a package holds, below a prefix.
fill() {
    install -Dm755 -t "$1/bin" "$built/dp" "$built/pinn" "$built/phalanx"
    install -Dm644 -t "$1/lib" "$built/libdeepmd_c.so"
    install -Dm644 -t "$1/share/man/man1" "$stage"/shell/man1/*.1
    install -Dm644 "$stage/shell/bash/dp.bash" "$1/share/bash-completion/completions/dp"
    install -Dm644 "$stage/shell/bash/pinn.bash" "$1/share/bash-completion/completions/pinn"
    install -Dm644 -t "$1/share/zsh/site-functions" "$stage"/shell/zsh/_*
    install -Dm644 -t "$1/share/fish/vendor_completions.d" "$stage"/shell/fish/*.fish
    install -Dm644 -t "$1/share/doc/phalanx" README.md CHANGELOG.md CITATION.cff LICENSE docs/*.md
    mkdir -p "$1/share/doc/phalanx/examples" && cp -r examples/water examples/pinn examples/your_data examples/lammps examples/cluster "$1/share/doc/phalanx/examples/"
    strip "$1"/bin/* 2>/dev/null || true
}

case $kind in
    tarball)
        name=phalanx-$version-x86_64-linux
        fill "$stage/$name"
        tar -C "$stage" --owner=0 --group=0 -czf "$folder/$name.tar.gz" "$name"
        echo "$folder/$name.tar.gz"
        ;;
    deb)
        fill "$stage/deb/usr"
        mkdir "$stage/deb/DEBIAN"
        cat >"$stage/deb/DEBIAN/control" <<END
Package: phalanx
Version: $version
Architecture: amd64
Maintainer: The Phalanx developers <phalanx@localhost>
Depends: libc6 (>= $glibc)
Suggests: openmpi-bin | mpich
Section: science
Priority: optional
Installed-Size: $(du -sk "$stage/deb/usr" | cut -f1)
Description: trains neural-network interatomic potentials, in parallel
 The commands, input files, data and logs of DeePMD-kit (dp) and PiNN (pinn), in programs that need no Python.
END
        dpkg-deb --root-owner-group --build "$stage/deb" "$folder/phalanx_${version}_amd64.deb"
        ;;
    *) echo "tarball or deb, not $kind" >&2; exit 2 ;;
esac
