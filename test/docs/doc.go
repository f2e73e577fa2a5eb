// Package docs tests the documentation: it has every key, route, error kind, condition and event, generated parts are current,
// and every block of every page is run or read by something. It does not check prose. How a block says where it runs: package documents.
package docs
