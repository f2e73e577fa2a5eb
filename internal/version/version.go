// Package version holds the version. It knows nothing else.
package version

// Number is the version of these sources, by semantic versioning: the only place where it is written. packaging/version.sh reads it
// for the programs, the packages and a release, and the first section of CHANGELOG.md describes it.
const Number = "v0.9.0"

// Version is Number, with the commit behind a plus unless it is that of the release. The linker sets it (-X).
var Version = Number
