// Package api is the v1 wire format: the spec, the answers of the daemon, the error kinds and the features.
//
// It has types with Validate and Normalize, and no behaviour. JSON fields are added, never changed.
package api
