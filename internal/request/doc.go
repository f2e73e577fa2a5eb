// Package request reads what a caller sent, strictly: the query and the JSON of a request, with errors that name the wrong key, and
// within limits of memory for each user. It knows no route and decides nothing about the caller.
package request
