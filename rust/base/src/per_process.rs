//! A value of which each process has its own. After `fork` a child must not use a queue, a lock or a counter
//! of its parent: the threads that hold or serve them do not exist in the child.

use std::sync::OnceLock;

/// A value that each process has of its own, made when it is first asked for.
#[derive(Debug)]
pub struct PerProcess<T> {
    process: u32,
    value: T,
    /// That of a child, which has this one from its parent.
    child: OnceLock<Box<PerProcess<T>>>,
}

impl<T: Default> Default for PerProcess<T> {
    fn default() -> Self {
        PerProcess { process: std::process::id(), value: T::default(), child: OnceLock::new() }
    }
}

impl<T: Default> PerProcess<T> {
    /// The value of this process.
    pub fn get(&self) -> &T {
        self.of(std::process::id())
    }

    fn of(&self, process: u32) -> &T {
        let mut one = self;
        while one.process != process {
            one = one.child.get_or_init(|| {
                Box::new(PerProcess { process, value: T::default(), child: OnceLock::new() })
            });
        }
        &one.value
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A child inherited a lock that a thread of its parent held, and waited for it for ever.
    #[test]
    fn each_process_of_a_line_has_its_own_value() {
        let value: PerProcess<Mutex<u32>> = PerProcess::default();
        let parents = value.get().lock().unwrap();
        let (child, grandchild) = (std::process::id() + 1, std::process::id() + 2);
        *value.of(child).lock().unwrap() = 1;
        let childs = value.of(child).lock().unwrap();
        *value.of(grandchild).lock().unwrap() = 2;
        assert_eq!((*parents, *childs, *value.of(grandchild).lock().unwrap()), (0, 1, 2));
    }
}
