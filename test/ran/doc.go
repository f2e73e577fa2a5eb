// Package ran tests ran.sh, which fails where a run of tests runs none: a selector that nothing matches any more must not
// pass for a success.
package ran
