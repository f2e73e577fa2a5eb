package device

// MaxLoaded is how many programs are kept.
const MaxLoaded = maxLoaded

// Loaded is how many programs are kept now.
func Loaded() int {
	loaded.mu.Lock()
	defer loaded.mu.Unlock()
	return len(loaded.programs)
}
