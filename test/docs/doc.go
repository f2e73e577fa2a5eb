// Package docs tests the documentation: its commands run, it has every key, route and error kind, and generated pages are
// current. It does not check prose.
package docs
