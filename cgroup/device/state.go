package device

// LoginFilterState is the login filter of one cgroup as read back.
type LoginFilterState struct {
	Cgroup string      `json:"cgroup"` // below the mount point of the hierarchy: "/user.slice"
	Filter LoginFilter `json:"filter"`
}
