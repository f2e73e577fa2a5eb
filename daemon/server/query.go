package server

import "github.com/gpushare/gpushare/internal/request"

// Query is the keys that a route has, each with the type of its value.
type Query = request.Query

// The types of values of a query.
const (
	Flag = request.Flag
	Text = request.Text
)

// Flag returns a boolean of the query; false if it is absent.
func (c *Call) Flag(key string) bool {
	c.mustDeclare(key)
	return request.Flags[c.query.Get(key)]
}

// Text returns a value of the query; empty if it is absent.
func (c *Call) Text(key string) string {
	c.mustDeclare(key)
	return c.query.Get(key)
}

func (c *Call) mustDeclare(key string) {
	if c.route != nil {
		if _, ok := c.route.Query[key]; !ok {
			panic("internal error: " + c.route.Method + " " + c.route.Pattern + " does not declare the query key " + key)
		}
	}
}
