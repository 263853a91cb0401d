//! Small data and a small network for `pinn train`.

/// A `params.yml`.
pub fn params(network: &str, model: &str, rate: f64, more: &str) -> String {
    format!(
        "model_dir: model\nprecision: float64\nseed: 3\n{more}\nmodel:\n  name: potential_model\n  params: {{use_force: true, {model}}}\n\
         network:\n  name: PiNet\n  params: {{atom_types: [1, 8], depth: 2, rc: 3.0, {network}}}\n\
         optimizer:\n  class_name: Adam\n  config: {{learning_rate: {rate}}}\n"
    )
}

/// One of a small network.
pub fn small(rate: f64) -> String {
    params("pp_nodes: [6], pi_nodes: [6], ii_nodes: [6], out_nodes: [6]", "", rate, "")
}

/// Extended xyz: a box of six atoms that are held by springs, with energies and forces to match.
pub fn structures(n: usize, seed: usize) -> String {
    let mut noise = super::Noise(seed as u64 + 17);
    let mut text = String::new();
    let home: Vec<[f64; 3]> =
        (0..6).map(|a| [(a % 2) as f64 * 2.0, (a / 2) as f64 * 1.6, (a % 3) as f64]).collect();
    for _ in 0..n {
        let moved: Vec<Vec<f64>> = (0..6).map(|_| noise.fill(3, 0.2)).collect();
        let energy: f64 = moved.iter().flatten().map(|x| 0.5 * 3.0 * x * x).sum();
        text += &format!(
            "6\nLattice=\"5 0 0 0 5 0 0 0 5\" Properties=species:S:1:pos:R:3:forces:R:3 energy={energy} pbc=\"T T T\"\n"
        );
        for (a, (home, moved)) in home.iter().zip(&moved).enumerate() {
            text += if a % 3 == 0 { "O" } else { "H" };
            (0..3).for_each(|k| text += &format!(" {}", home[k] + moved[k]));
            (0..3).for_each(|k| text += &format!(" {}", -3.0 * moved[k]));
            text += "\n";
        }
    }
    text
}
