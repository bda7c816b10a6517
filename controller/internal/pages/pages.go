// Package pages reads long lists in pages: that bounds the memory.
package pages

import (
	"context"
	"iter"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// size is how many objects a page has, at most.
const size = client.Limit(500)

// Of returns the pages of a list, and at last perhaps an error: a token may expire. empty says what is listed. After a break no
// more pages are read.
func Of[L client.ObjectList](ctx context.Context, reader client.Reader, empty L, options ...client.ListOption) (
	all iter.Seq2[L, error]) {
	return func(yield func(L, error) bool) {
		for token := client.Continue(""); ; {
			page, _ := empty.DeepCopyObject().(L) // a new one: what a page does not say must not be what the last one said
			if err := reader.List(ctx, page, append(options, size, token)...); err != nil {
				yield(page, err)
				return
			}
			token = client.Continue(page.GetContinue())
			if !yield(page, nil) || token == "" {
				return
			}
		}
	}
}
