// Package cgroup is the port to what holds processes: slices with limits and device rules, a scope for each lease, the
// freezer gate, and the answer to whose process a pid is.
//
// It holds the port and the adapters that need no service manager: cgroupfs, a subtree of its own on a cgroup v2
// hierarchy; processes, which follows the process tree where there is no permission for more; and visitors, for what
// stays in a cgroup that is not ours. The adapter for systemd is package systemd. It decides nothing: tenants, grants and quotas are other packages' words.
package cgroup
