# apt.sh, for scripts that unpack packages of Debian and install none; $what is what they get. The host's apt does not
# change: each suite and component has its own lists and cache below $work, with the mirror and the options of the host's apt.

die() {
	echo "$0: cannot get $what: $*" >&2
	exit 1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The first mirror of the host's apt that carries Debian.
mirror=$(apt-get indextargets --format '$(ORIGIN)|$(REPO_URI)' 2>/dev/null |
	sed -n 's/^Debian|//p' | grep -v security | sort -u | head -n 1 || true)
keys=/usr/share/keyrings/debian-archive-keyring.gpg

# apt SUITE COMPONENT COMMAND... runs apt-get with one suite and component of Debian.
apt() {
	own=$work/apt-$1-$2
	if [ ! -d "$own" ]; then
		mkdir -p "$own/lists/partial" "$own/cache/archives/partial" "$own/sources"
		printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: %s\n' "$mirror" "$1" "$2" >"$own/sources/debian.sources"
		[ ! -f "$keys" ] || echo "Signed-By: $keys" >>"$own/sources/debian.sources"
	fi
	shift 2
	command=$1
	shift
	apt-get -qq "$command" "$@" \
		-o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$own/sources" \
		-o Dir::State::Lists="$own/lists" -o Dir::Cache="$own/cache" \
		-o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o APT::Sandbox::User=root
}

# place ROOT DIRECTORY copies what was unpacked, so that the directory is complete when it exists.
place() {
	mkdir -p "$(dirname "$2")"
	rm -rf "$2" "$2.new"
	cp -a "$1" "$2.new"
	mv "$2.new" "$2"
}
