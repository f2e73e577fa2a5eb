// Package device contains the two device programs (BPF_PROG_TYPE_CGROUP_DEVICE) that gpushare attaches to cgroups. Device
// rules allow the processes of a cgroup to open the listed devices and nothing else. The login filter denies the listed
// devices, with exceptions for users.
//
// An attached program never changes: its maps are frozen. For other rules another program is attached before the old one is
// detached, so that at no moment fewer rules apply than before or after. Nothing is pinned and nothing is stored: the state
// is read back from the cgroup by the name of the program. This package knows no tenants and no GPUs.
package device
