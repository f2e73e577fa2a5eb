# A new host: the package alone, then the README and the pages from its documentation, as their readers walk through them. The program
# walk reads their blocks and compares what the commands print. What the package does not bring is prepared before it: the virtual
# driver, the programs of readers, and the directory in which a build left the package.
# checks: install first-spec README tenants exclusive timeslice mig usage events api monitoring backup troubleshooting from-mig-manager from-slurm-gres driver-upgrade unmanage first-week
# seconds: 600

. /opt/lab/guest/product.sh

walk() { # walk PAGE
	/opt/lab/walk/walk -simulator /usr/local/lib/gpusim -node $root "$1"
}
# Each page begins on a node that manages nothing, as on the virtual node.
walk_docs() { # walk_docs NAME
	gpushare unmanage --all --force >/dev/null
	walk "/usr/share/doc/gpushare/docs/$1.md"
}

settings() {
	mkdir -p /etc/gpushare
	cp /run/lab/gpushared.yaml /etc/gpushare/
}
prepare() {
	# The image leaves documentation of packages out; a host does not.
	rm -f /etc/dpkg/dpkg.cfg.d/99mmdebstrap
	install_lab_profiles
	install_virtual_gpus
	install -m 0644 /opt/lab/nodes/dgx-a100.yaml /usr/local/lib/gpusim/node.yaml
	systemctl start gpusim.service
	# Settings that are there stay, as for a host whose administrator wrote them first. Timeouts are for an emulated processor and eight
	# GPUs.
	printf 'host_root: %s\ndriver_read_timeout: 120s\nsample_interval: 5s\n' $root >/run/lab/gpushared.yaml
	settings
	mkdir -p /etc/systemd/system/gpushared.service.d
	printf '[Service]\nWatchdogSec=300s\n' >/etc/systemd/system/gpushared.service.d/lab.conf
	echo force-confold >/etc/dpkg/dpkg.cfg.d/lab
	# The reader answers yes.
	echo 'APT::Get::Assume-Yes "true";' >/etc/apt/apt.conf.d/90lab
	local program
	for program in python make; do
		/opt/lab/walk/walk -simulator /usr/local/lib/gpusim -node $root -program >/usr/local/bin/$program
		chmod 0755 /usr/local/bin/$program
	done
	install -m 0755 /opt/lab/guest/curl.pl /usr/local/bin/curl
	mkdir -p /root/build/packages
	cp /opt/lab/packages/gpushare.deb /root/build/packages/gpushare_1.0_amd64.deb
}

# The page about the installation comes first, from where it was read: its package is not installed yet.
check_install() {
	prepare
	walk /opt/lab/docs/install.md
	cmp /opt/lab/docs/install.md /usr/share/doc/gpushare/docs/install.md
}
check_README() {
	want "what pages name and the package lacks" "$(cd /usr/share/doc/gpushare && missing)" ""
	gpushare unmanage --all --force >/dev/null
	walk /usr/share/doc/gpushare/README.md
}
missing() { # missing prints the links, files and man pages that the pages in this directory have and the host has not
	local file target name
	while IFS=: read -r file target; do
		# The examples are not part of the documentation: docs/install.md says where they are.
		case $target in ../examples*) target=/usr/share/gpushare/${target#../} ;; *) target=$(dirname "$file")/$target ;; esac
		[ -e "$target" ] || echo "$file: $target"
	done < <(grep -oE '\]\([^)#:]+[)#]' README.md docs/*.md docs/maintainers/*.md | sed 's/\](//; s/.$//' | sort -u)
	while read -r target; do
		[ -e "$target" ] || echo "$target"
	done < <(grep -ohE '/usr/(share|libexec|lib|s?bin)/[a-z/]*gpushare[A-Za-z0-9./_-]*[A-Za-z0-9]' README.md docs/*.md docs/maintainers/*.md | sort -u)
	while read -r _ name; do
		compgen -G "/usr/share/man/man*/$name.[1-8].gz" >/dev/null || echo "the man page $name"
	done < <(grep -ohE '`man [a-z.-]+' README.md docs/*.md docs/maintainers/*.md | sort -u)
}
for name in $(sed -n '/^# checks: install /{s///;s/ README / /;s/ first-week$//;p}' /opt/lab/guest/phases/documents.sh); do
	eval "check_$name() { walk_docs $name; }"
done

# The first week is that of a host to which the package is new, with GPUs as they are delivered. The page before it has removed the package;
# a purge makes the host a new one again.
check_first-week() {
	want "the package" "$(dpkg-query -W -f '${db:Status-Status}' gpushare)" config-files
	dpkg -P gpushare
	systemctl stop gpusim.service
	rm -r /var/lib/gpusim
	systemctl start gpusim.service
	settings
	apt-get install -q /opt/lab/packages/gpushare.deb
	walk /usr/share/doc/gpushare/docs/first-week.md
}
