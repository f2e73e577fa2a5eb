#!/bin/sh
# A plug-in of CNI for pods that do not have the network of the node: they have a namespace with nothing in it. The runtime wants an address.
case ${CNI_COMMAND:-} in
ADD)
	printf '{"cniVersion": "1.0.0", "interfaces": [{"name": "%s", "sandbox": "%s"}], "ips": [{"address": "10.244.0.2/24", "interface": 0}]}\n' \
		"$CNI_IFNAME" "$CNI_NETNS"
	;;
VERSION) printf '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}\n' ;;
esac
