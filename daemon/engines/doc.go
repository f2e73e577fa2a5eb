// Package engines gives the engines of a node, as Slurm and Kubernetes, their keyed leases: an engine has chosen the place, the key
// names the job, and a second request with it is the same lease. A lease has its place before its cgroup is there, and is bound to the
// cgroup when that appears. The life of the lease from then on is of package leases.
package engines
