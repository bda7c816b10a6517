package harness

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// Objects lists and watches objects of one kind.
type Objects interface {
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// Watch hands every change of objects since a list to see, in one goroutine, until stop is called, at the latest when the test
// ends. A watch that ends before fails the test. T is a pointer to the kind of the objects.
func Watch[T runtime.Object](s *Suite, objects Objects, since string, selector string, see func(watch.EventType, T)) (stop func()) {
	s.T.Helper()
	watcher, err := watchtools.NewRetryWatcherWithContext(s.Ctx, since, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = selector
			return objects.Watch(ctx, options)
		}})
	s.NoError(err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range watcher.ResultChan() {
			object, ok := event.Object.(T)
			if !ok {
				s.T.Errorf("the watch has ended: %v", event.Object)
				return
			}
			see(event.Type, object)
		}
	}()
	stop = func() {
		watcher.Stop()
		<-done
	}
	s.Undo(func(context.Context) error { stop(); return nil })
	return stop
}
