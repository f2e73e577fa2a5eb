// Package tools lets independent NVML clients read the virtual node through its libnvidia-ml.so.1: Debian's
// python3-pynvml, which reads everything (read.py), and nvtop, which shows it on a terminal. The tests compare the
// readings with the node's own state and with the boards' files, so that an error in the library that gpushare's own
// client shares is found.
//
// It is not part of make test, because the clients are downloaded (clients.sh): the tests have the build tag tools (make
// test-tools). They fail, and do not skip, where the clients cannot be downloaded. Only the screen for nvtop does not
// have the tag.
package tools
