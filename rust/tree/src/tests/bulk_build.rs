//! Trees from a bulk build, and later commits to them.

use arrow_array::{Array, StringArray};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::model::{Changes, Dictionary, Model, config};
use crate::bulk_build::{NodeWriter, build, merge_runs};
use trinitylake_base::error::Error;

fn writer(model: &Model) -> NodeWriter<'_> {
    NodeWriter { storage: model.files.as_ref(), environment: model.environment.as_ref(), config: &model.config }
}

async fn built(order: usize, count: usize) -> Model {
    let config = config(order, 200, 200, 2000);
    let empty = Model::empty(config, count as u64);
    let dictionary: Dictionary = (0..count).map(|i| (format!("k{i:06}"), format!("v{i}"))).collect();
    let keys = StringArray::from_iter_values(dictionary.keys());
    let locations = StringArray::from_iter_values(dictionary.values());
    let root = build(&writer(&empty), &keys, &locations).await.unwrap();
    Model::of(config, dictionary, root, empty)
}

#[tokio::test]
async fn built_trees_of_every_size_have_all_keys_and_no_underfull_node() {
    for order in 3..=8 {
        let around = |size: usize| size.saturating_sub(1)..=size + 1;
        let sizes = (0..3 * order).chain(around(order * order)).chain(around(order * order * order)).chain([1500]);
        for count in sizes {
            println!("order {order}, {count} keys");
            let model = built(order, count).await;
            model.check_shape().await;
            model.check_keys(&model.cold_nodes()).await;
            model.check_filled().await;
        }
    }
}

#[tokio::test]
async fn scans_of_built_trees_equal_the_dictionary() {
    let mut generator = StdRng::seed_from_u64(3);
    for (order, count) in [(3, 700), (5, 3000), (128, 40_000)] {
        built(order, count).await.check_scans(&mut generator).await;
    }
}

#[tokio::test]
async fn commits_onto_a_built_tree_equal_the_dictionary() {
    for order in 3..=8 {
        for count in [0, 1, order - 1, order, order + 1, 300] {
            println!("order {order}, {count} keys");
            let mut model = built(order, count).await;
            let mut generator = StdRng::seed_from_u64(count as u64);
            for step in 0..15 {
                let mut changes = Changes::new();
                for _ in 0..generator.random_range(1..20) {
                    // Keys of the build, keys between them, and keys above all of them.
                    let number = generator.random_range(0..count + 10);
                    let key = format!("k{number:06}{}", if generator.random_bool(0.4) { "x" } else { "" });
                    changes.retain(|(other, _)| *other != key);
                    changes.push((key, generator.random_bool(0.5).then(|| format!("w{step}"))));
                }
                model.commit(changes).await;
            }
            model.check_scans(&mut generator).await;
            model.check_diff(&mut generator).await;
        }
    }
}

#[tokio::test]
async fn a_build_refuses_keys_that_do_not_ascend() {
    let model = Model::empty(config(4, 0, 0, 1024), 0);
    for keys in [vec!["b", "a"], vec!["a", "a"]] {
        let keys = StringArray::from(keys);
        let error = build(&writer(&model), &keys, &keys).await;
        assert!(matches!(error, Err(Error::InvalidArgument(_))), "{error:?}");
    }
    let (two, one) = (StringArray::from(vec!["a", "b"]), StringArray::from(vec!["a"]));
    let error = build(&writer(&model), &two, &one).await;
    assert!(matches!(error, Err(Error::InvalidArgument(_))), "{error:?}");
}

#[test]
fn merged_runs_ascend_and_a_key_in_both_is_refused_or_replaced() {
    let run = |keys: &[&str]| StringArray::from_iter_values(keys);
    let merge = |left: &StringArray, right: &StringArray| {
        merge_runs((left, left), (right, right), |key| Err(Error::ObjectAlreadyExists(key.to_string())))
    };
    let (keys, locations) = merge(&run(&["a", "d"]), &run(&["b", "c", "e"])).unwrap();
    assert_eq!(*keys, run(&["a", "b", "c", "d", "e"]));
    assert_eq!(keys, locations);
    assert_eq!(merge(&run(&[]), &run(&["a"])).unwrap().0.len(), 1);
    let error = merge(&run(&["a", "d"]), &run(&["b", "d"])).unwrap_err();
    assert!(matches!(error, Error::ObjectAlreadyExists(key) if key == "d"));
    let (old, new) = (run(&["1", "2", "3"]), run(&["4", "5", "6"]));
    let (left, right) = (run(&["a", "d", "e"]), run(&["a", "b", "e"]));
    let (keys, locations) = merge_runs((&left, &old), (&right, &new), |_| Ok(())).unwrap();
    assert_eq!((*keys).clone(), run(&["a", "b", "d", "e"]));
    assert_eq!((*locations).clone(), run(&["4", "5", "2", "6"]));
}
