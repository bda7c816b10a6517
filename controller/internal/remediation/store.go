package remediation

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// stored is the ledger as it was read or written last.
type stored struct {
	object *corev1.ConfigMap // nil: never. The controller creates it: Helm would reset it
	ledger Ledger            // in it
}

// readLedger reads the ledger from the API server. If somebody has deleted it, it is created again as it was read last.
func (r *Remediator) readLedger(ctx context.Context) error {
	key := client.ObjectKey{Namespace: r.Settings.PodNamespace, Name: r.LedgerName}
	object := new(corev1.ConfigMap)
	err := r.Client.Get(ctx, key, object)
	if apierrors.IsNotFound(err) {
		object = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: key.Name, Namespace: key.Namespace},
			Data: map[string]string{ledgerKey: r.stored.ledger.String()}}
		err = r.Client.Create(ctx, object)
	}
	if err != nil {
		return fmt.Errorf("ConfigMap %s: %w", key, err)
	}
	ledger, err := parseLedger(object.Data[ledgerKey])
	if err != nil && r.stored.object != nil {
		err = fmt.Errorf("%w, or delete the ConfigMap: this leader then writes the ledger as it last read it", err)
	}
	if err != nil {
		return fmt.Errorf("ConfigMap %s: %w", key, err)
	}
	r.stored = stored{object, ledger}
	return nil
}

// writeLedger replaces the ledger, unless somebody has changed it since it was read: then the error is a conflict.
func (r *Remediator) writeLedger(ctx context.Context, ledger Ledger) error {
	object := r.stored.object.DeepCopy()
	object.Data[ledgerKey] = ledger.String()
	delete(object.Annotations, ClearHalt)
	if err := r.Client.Update(ctx, object); err != nil { // with the resourceVersion that was read
		return fmt.Errorf("ConfigMap %s: %w", client.ObjectKeyFromObject(object), err)
	}
	r.stored = stored{object, ledger}
	return nil
}
