// Package tools lets NVML clients that we did not write read the virtual node through its libnvidia-ml.so.1: Debian's
// python3-pynvml, which reads all there is (read.py), and nvtop, which shows it on a terminal. What they read is compared
// with what the node itself knows and with the boards' files, so a mistake of the library that our own client shares does
// not pass.
//
// It is not part of make test, because the clients are fetched (clients.sh): the tests live behind the build tag tools
// (make test-tools). They fail, and do not skip, where the clients cannot be had. Only the screen that nvtop writes to is
// here without it.
package tools
