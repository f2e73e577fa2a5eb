// Package version holds the version that the build wrote in. It knows nothing else.
package version

// Version is set by the linker (-X); "dev" in a build that does not.
var Version = "dev"
