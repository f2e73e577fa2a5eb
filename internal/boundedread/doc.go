// Package boundedread reads what a user may make long, slow or strange: files of other processes in /proc, files in directories of
// users, logs, pipes, answers of programs, and directories. Every read has a bound, says when there was more, refuses what is no
// file, and none keeps its caller waiting for a file system or a process that does not answer. The linter forbids the unbounded
// calls of the standard library outside of this package.
//
// It reads bytes, lines and names, and knows no format.
package boundedread
