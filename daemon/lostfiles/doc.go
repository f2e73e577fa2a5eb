// Package lostfiles finds out that files of the running daemon were removed by another program, has those written again that can be, and
// says what is lost. Each part of the daemon compares its own files; this package decides nothing about their content.
package lostfiles
