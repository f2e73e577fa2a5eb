package device

// LoginFilterState is the login filter of one cgroup as read back.
type LoginFilterState struct {
	Cgroup string      `json:"cgroup"` // below the mount point of the hierarchy: "/user.slice"
	Filter LoginFilter `json:"filter"`
	// ID is the number of the cgroup from which it was read; 0 when it was not read. The cgroup of a unit that was started again is
	// another one.
	ID uint64 `json:"-"`
	// Writes is how many filters gpushare had written before it was read, in this run of the daemon.
	Writes uint64 `json:"-"`
}
