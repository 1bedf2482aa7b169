//! Parked deletes: deletes of separators. They wait in the buffer, because a separator cannot be removed without a
//! replacement. Rules 3 and 4 of the tree (`docs/architecture.md`).

use futures::future::BoxFuture;

use super::flush::{Flush, Subtree};
use trinitylake_base::error::Result;
use trinitylake_format::node::mutable_node::{Message, MutableNode, Row};

impl Flush<'_> {
    /// Resolves parked deletes if they take more than half of the buffer, because a flush cannot remove them.
    pub async fn resolve_parked(&mut self, draft: &mut MutableNode, buffer_cap_bytes: usize) -> Result<()> {
        loop {
            let parked = draft.buffer.iter().filter(|message| draft.is_parked(message));
            if parked.map(Message::size_bytes).sum::<usize>() * 2 <= buffer_cap_bytes {
                return Ok(());
            }
            let Some(row) = draft.parked_rows().into_iter().next() else { return Ok(()) };
            self.resolve(draft, row).await?;
        }
    }

    /// Replaces a deleted row by the greatest key to its left.
    async fn resolve(&mut self, draft: &mut MutableNode, row: usize) -> Result<()> {
        self.tally.parked_resolved += 1;
        let messages = draft.take_messages_of(row);
        let child = self.load(&draft.children[row], draft.height - 1).await?;
        let (greatest, subtree) = self.pop_max(child, messages).await?;
        draft.take_parked(row);
        match greatest {
            Some(replacement) => {
                draft.rows[row] = replacement;
                self.integrate(draft, row, subtree).await
            }
            None => {
                self.tally.emptied += 1;
                draft.rows.remove(row);
                draft.children.remove(row);
                Ok(())
            }
        }
    }

    /// Flushes the messages along the right edge of a subtree, and removes and returns its greatest key.
    fn pop_max(
        &mut self,
        mut draft: MutableNode,
        messages: Vec<Message>,
    ) -> BoxFuture<'_, Result<(Option<Row>, Subtree)>> {
        Box::pin(async move {
            if draft.is_leaf() {
                draft.apply_to_leaf(messages);
                let greatest = draft.rows.pop();
                return Ok((greatest, self.finish(draft, false)));
            }
            draft.buffer.extend(messages);
            draft.absorb();
            loop {
                let last = draft.children.len() - 1;
                let messages = draft.take_messages_of(last);
                let child = self.load(&draft.children[last], draft.height - 1).await?;
                let (greatest, subtree) = self.pop_max(child, messages).await?;
                if greatest.is_some() {
                    self.integrate(&mut draft, last, subtree).await?;
                    return Ok((greatest, self.finish(draft, false)));
                }
                // The last child is empty, so its separator is the greatest key, unless a delete is parked for it.
                self.tally.emptied += 1;
                draft.children.pop();
                if draft.rows.is_empty() {
                    return Ok((None, Subtree::Empty));
                }
                let parked = draft.take_parked(draft.rows.len() - 1);
                let separator = draft.rows.pop();
                if parked.is_none() {
                    return Ok((separator, self.finish(draft, false)));
                }
            }
        })
    }
}
