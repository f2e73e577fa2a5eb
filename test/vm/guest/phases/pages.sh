# A new host: the package alone, then the README and the pages from its documentation, as their readers walk through them. The program
# walk reads their blocks and compares what the commands print. What the package does not bring is prepared before it: the virtual
# driver, the programs of readers, and the directory in which a build left the package.
# checks: install README first-spec tenants exclusive timeslice mig usage events api monitoring backup troubleshooting from-mig-manager from-slurm-gres driver-upgrade unmanage
# seconds: 330

. /opt/lab/guest/product.sh

walk() { # walk PAGE
	/opt/lab/walk/walk -simulator /usr/local/lib/gpusim -node $root "$1"
}
# Each page begins on a node that manages nothing, as on the virtual node.
walk_docs() { # walk_docs NAME
	gpushare unmanage --all --force >/dev/null
	walk "/usr/share/doc/gpushare/docs/$1.md"
}

prepare() {
	# The image leaves documentation of packages out; a host does not.
	rm -f /etc/dpkg/dpkg.cfg.d/99mmdebstrap
	install_virtual_gpus
	install -m 0644 /opt/lab/nodes/dgx-a100.yaml /usr/local/lib/gpusim/node.yaml
	systemctl daemon-reload
	systemctl start gpusim.service
	# Settings that are there stay, as for a host whose administrator wrote them first.
	mkdir -p /etc/gpushare
	{ echo "host_root: $root" && cat /opt/lab/guest/node/settings.yaml; } >/etc/gpushare/gpushared.yaml
	echo force-confold >/etc/dpkg/dpkg.cfg.d/lab
	local program
	for program in python make; do
		/opt/lab/walk/walk -simulator /usr/local/lib/gpusim -node $root -program >/usr/local/bin/$program
		chmod 0755 /usr/local/bin/$program
	done
	mkdir -p /root/build/packages
	cp /opt/lab/packages/gpushare.deb /root/build/packages/gpushare_1.0_amd64.deb
}

# The page about the installation comes first, from where it was read: its package is not installed yet.
check_install() {
	prepare
	walk /opt/lab/docs/install.md
	cmp /opt/lab/docs/install.md /usr/share/doc/gpushare/docs/install.md
}
check_README() { walk /usr/share/doc/gpushare/README.md; }
for page in $(sed -n 's/^# checks: install README //p' /opt/lab/guest/phases/pages.sh); do
	eval "check_$page() { walk_docs $page; }"
done
