package cli

import "time"

// SetNow sets the clock of the ages that are shown.
func SetNow(f func() time.Time) { now = f }

// SetPlotter sets the program that draws images.
func SetPlotter(path string) { installedPlotter = path }

// UnreadyGPUs is unreadyGPUs.
var UnreadyGPUs = unreadyGPUs

// OtherWords and NounWords are words of other tools and their hints.
var (
	OtherWords = otherWords
	NounWords  = nounWords
)
