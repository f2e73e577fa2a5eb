// Package api is the v1 wire format: the spec, what the daemon answers, the error kinds and the features.
//
// It holds types with Validate and Normalize and nothing that acts. JSON field names are a promise: they are added to,
// never changed.
package api
