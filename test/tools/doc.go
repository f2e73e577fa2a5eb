// Package tools runs programs of others against the virtual node and against the product.
//
// Independent NVML clients read the virtual node through its libnvidia-ml.so.1: Debian's python3-pynvml, which reads
// everything (read.py), and nvtop, which shows it on a terminal. The tests compare the readings with the node's own state
// and with the boards' files, so that an error in the library that gpushare's own client shares is found.
//
// NVIDIA's MPS control programs of Debian, of the driver branches 535 and 550, run the commands of the stand-in's tests
// (gpusim/mpsd/mpstest) and are started and stopped by the product's supervisor, all without a GPU.
//
// Debian's Prometheus scrapes the daemon, evaluates the alert rules of the examples and answers the queries of the dashboard;
// promtool checks the metrics and the rules.
//
// The packages are built and read with dpkg, rpm and groff.
//
// It is not part of make test, because the programs are downloaded (clients.sh, mps.sh, prometheus.sh): the tests have the
// build tag tools (make test-tools). They fail, and do not skip, where the programs cannot be downloaded. Only the screen for nvtop does
// not have the tag.
package tools
