// Package docs tests that the documents are true: commands in them run, every key, route and error kind is in them, and
// what is generated is current. It judges no prose.
package docs
