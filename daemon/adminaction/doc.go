// Package adminaction carries out what an administrator requests of a place outside of a spec: it is recorded, noted for the audit,
// published and passed on. What it means, and whether it changes something, is up to the caller.
package adminaction
