package remediation

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// store keeps the ledger in a ConfigMap, which the controller creates: Helm would reset it.
type store struct {
	client client.Client
	key    client.ObjectKey
	object *corev1.ConfigMap // as it was read or written last; nil: never
	ledger Ledger            // in it
}

// read reads the ledger from the API server. One that somebody has deleted is made again from the last that was read.
func (s *store) read(ctx context.Context) error {
	object := new(corev1.ConfigMap)
	err := s.client.Get(ctx, s.key, object)
	if apierrors.IsNotFound(err) {
		object = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: s.key.Name, Namespace: s.key.Namespace},
			Data: map[string]string{ledgerKey: s.ledger.String()}}
		err = s.client.Create(ctx, object)
	}
	if err != nil {
		return fmt.Errorf("ConfigMap %s: %w", s.key, err)
	}
	ledger, err := parseLedger(object.Data[ledgerKey])
	if err != nil && s.object != nil {
		err = fmt.Errorf("%w, or delete the ConfigMap: this leader then writes the ledger as it last read it", err)
	}
	if err != nil {
		return fmt.Errorf("ConfigMap %s: %w", s.key, err)
	}
	s.object, s.ledger = object, ledger
	return nil
}

// write replaces the ledger, unless somebody has changed it since it was read: then the error is a conflict.
func (s *store) write(ctx context.Context, ledger Ledger) error {
	object := s.object.DeepCopy()
	object.Data[ledgerKey] = ledger.String()
	delete(object.Annotations, ClearHalt)
	if err := s.client.Update(ctx, object); err != nil { // with the resourceVersion that was read
		return fmt.Errorf("ConfigMap %s: %w", s.key, err)
	}
	s.object, s.ledger = object, ledger
	return nil
}
