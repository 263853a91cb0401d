//! The Mersenne twister MT19937, which PyTorch and Python share; they seed it and use its words each in their own way.

/// Words of the state.
pub const N: usize = 624;
/// A word is mixed with the one so many places ahead.
const M: usize = 397;

/// The generator after seeding.
#[derive(Debug, Clone)]
pub struct Twister {
    state: [u32; N],
    next: usize,
}

impl Twister {
    /// The state that follows from its first word.
    pub fn spread(first: u32) -> [u32; N] {
        let mut state = [first; N];
        for i in 1..N {
            let before = state[i - 1];
            state[i] = (before ^ (before >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        state
    }

    /// A generator that starts from this state.
    pub fn new(state: [u32; N]) -> Self {
        Twister { state, next: N }
    }

    /// The next word.
    pub fn word(&mut self) -> u32 {
        if self.next == N {
            self.renew();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    fn renew(&mut self) {
        for k in 0..N {
            let y = (self.state[k] & 0x8000_0000) | (self.state[(k + 1) % N] & 0x7fff_ffff);
            let twist = if y & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[k] = self.state[(k + M) % N] ^ (y >> 1) ^ twist;
        }
        self.next = 0;
    }
}
