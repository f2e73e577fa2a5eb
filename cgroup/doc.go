// Package cgroup is the port to cgroups: slices with limits and device rules, a scope for each lease, the freezer, and
// the scope of a pid.
//
// It contains the port and three adapters that need no service manager: Tree, a subtree of its own on a cgroup v2
// hierarchy; Processes, which follows the process tree where permission for more is missing; and Attachments, for
// processes that remain in a cgroup that gpushare does not manage. The adapter for systemd is package systemd. This
// package makes no decisions and knows no tenants, grants or quotas.
package cgroup
