// Package exampletest proves hack/examples without a cluster: its values files render with the chart, its agents accept their
// settings, and the objects for other programs fit these programs' own types. `make test` runs it.
package exampletest
