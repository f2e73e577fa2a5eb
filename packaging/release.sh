#!/bin/sh
# release.sh VERSION BIN_DIR OUT_DIR writes a release into OUT_DIR: the deb, the rpm, the list of the modules in the programs (an SBOM in
# the format of CycloneDX), and the checksums of them. The same sources give the same bytes. cyclonedx-gomod is a Go module of a pinned
# version, built once into build/tools.
set -eu
if [ $# -ne 3 ]; then
	echo "release.sh: usage: release.sh VERSION BIN_DIR OUT_DIR" >&2
	exit 2
fi
cd "$(dirname "$0")/.."
version=$1 bin=$2 out=$3
export LC_ALL=C
umask 022

sbom_version=v1.9.0
sbom=$PWD/build/tools/cyclonedx-gomod-$sbom_version
if [ ! -x "$sbom" ]; then
	echo "release.sh: building cyclonedx-gomod $sbom_version (once, about a minute)"
	mkdir -p build/tools
	GOFLAGS=-trimpath CGO_ENABLED=0 GOBIN=$PWD/build/tools go install "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@$sbom_version"
	mv build/tools/cyclonedx-gomod "$sbom"
fi
if [ -z "${SOURCE_DATE_EPOCH:-}" ] && ! SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null); then
	echo "release.sh: cannot make a release: this is not a clone, so set SOURCE_DATE_EPOCH to the time of the sources" >&2
	exit 1
fi
export SOURCE_DATE_EPOCH

rm -rf "$out"
mkdir -p "$out"
packaging/package.sh "$version" "$bin" "$out"

# The modules of the programs, without those of tests. The tool writes when it runs, and knows the version of a tag only.
at=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
CGO_ENABLED=1 "$sbom" mod -json -licenses -std -noserial -type application -output "$out/modules" . 2>"$out/log" || {
	cat "$out/log" >&2
	exit 1
}
sed -e "s/\"timestamp\": \"[^\"]*\"/\"timestamp\": \"$at\"/" \
	-e "/^ *\"component\": {/,/^ *}/ { /\"version\":/d; s#^\( *\)\(\"name\": \"github.com/gpushare/gpushare\",\)#\1\2\n\1\"version\": \"$version\",# }" \
	"$out/modules" >"$out/gpushare.cdx.json"
rm "$out/modules" "$out/log"
(cd "$out" && sha256sum -- * >SHA256SUMS)
echo "$out/gpushare.cdx.json"
echo "$out/SHA256SUMS"
