// Package screen shows package top on a terminal: it reads keys and the status of the node, and writes what changed.
package screen
