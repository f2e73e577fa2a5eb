package device

// State is the guard of one cgroup as read back.
type State struct {
	Cgroup string `json:"cgroup"` // below the mount point of the hierarchy: "/user.slice"
	Guard  Guard  `json:"guard"`
}
