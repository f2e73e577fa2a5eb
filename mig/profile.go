package mig

import "github.com/gpushare/gpushare/gpu"

// maxShown is how much of a wrong name a message shows, in bytes.
const maxShown = 80

// ProfileName is a parsed profile name.
type ProfileName = gpu.ProfileName

// ParseProfile parses a profile name.
func ParseProfile(name string) (ProfileName, error) { return gpu.ParseProfile(name) }
